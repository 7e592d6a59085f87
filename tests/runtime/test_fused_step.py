"""The one-pass optimizer step against torch's AdamW. Triton and a GPU only."""

from __future__ import annotations

import pytest
import torch

from colosseum.runtime import fused_step

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="the kernel is CUDA's")

GROUP = {"lr": 3e-3, "betas": (0.9, 0.95), "eps": 1e-8, "weight_decay": 0.1}


@pytest.mark.parametrize("count", [1, 4095, 4096, 3 * 4096 + 17])
def test_three_steps_equal_torchs_adamw_on_scaled_gradients(count: int) -> None:
    torch.manual_seed(1)
    start = torch.randn(count, device="cuda")
    theirs = start.clone().requires_grad_()
    adamw = torch.optim.AdamW([theirs], fused=False, foreach=False, **GROUP)
    weight, avg, sq = start.clone(), torch.zeros_like(start), torch.zeros_like(start)
    model_weight = torch.zeros(count, device="cuda", dtype=torch.bfloat16)
    for step in (1, 2, 3):
        grad = torch.randn(count, device="cuda")
        theirs.grad = grad * 0.25
        adamw.step()
        row = fused_step.Row(grad, weight, avg, sq, model_weight)
        fused_step.adam(row, GROUP | {"step": step}, 0.25)
    torch.testing.assert_close(weight, theirs.detach(), rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(avg, adamw.state[theirs]["exp_avg"], rtol=1e-6, atol=1e-7)
    torch.testing.assert_close(sq, adamw.state[theirs]["exp_avg_sq"], rtol=1e-6, atol=1e-7)
    assert torch.equal(model_weight, weight.bfloat16())
