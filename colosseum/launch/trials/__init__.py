"""Many runs or short ones: sweeps, rehearsals, smoke tests."""
