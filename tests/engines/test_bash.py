"""Words of a script as bash itself gives them: every script here is also run by bash, with programs that print."""

from __future__ import annotations

import random
import shutil
import subprocess
import time

import pytest

from colosseum.engines.megatron_lm.bash import follow
from colosseum.engines.megatron_lm.bash_values import is_plain, shown

CASES = [
    'A=(--x 1 --y "a b" "" c)\nshow "${A[@]}"\nshow ${A[@]}\nshow "${A[*]}" ${A[*]} "<${A[@]}>"',
    'A=("--fp8-format hybrid" "--x 512")\nshow ${A[@]}\nshow "${A[@]}"',
    'A=(1 2) B=()\nA+=(3 \'4 5\'); B+=("${A[@]}" 6)\nshow ${#A[@]} "${B[@]}" ${B[0]} ${B[3]} ${A[-1]}',
    'declare -a A=(1 "2 3")\ndeclare -a B\nB+=(x)\nshow "${A[@]}" "${B[@]}"',
    'export C="a  b"\nreadonly D=\'$A\'\nshow $C "$C" "$D"',
    'E=""\nshow $E "$E" x${E}y ${E:-d e} "${E:-d e}" "${E-set}" ${E:+no} ${U:+no} end',
    'A=()\nshow "${A[@]}" ${A[@]} "${A[@]:-none}" end',
    'X=a; X+=b; X="$X c"; show $X "$X" ${X}d "pre $X post" pre${X}post',
    "N=8; show $((N*16)) $((${N}/3)) $(( (N+1) % 4 - 7 )) $((-7/2)) $((N>3 && N<9)) $[N+1]",
    "F=/a/b.c.tar; show ${F##*/} ${F%.*} ${F%%.*} ${F#*/} ${F#nothing}",
    'show a\\ b \'c  d\' "e\\"f \\$x" g\\\n h # not this\nshow "two\nlines" $\'tab\\there\'',
    "if [[ 1 == 1 && -n x ]]; then A=y; else A=n; fi; show $A",
    'P=fp8\nif [ "$P" = bf16 ]; then A=1\nelif [[ $P == fp* ]]; then A=2; else A=3; fi\nshow $A',
    "S=7b; case $S in 1b) L=16;; 7b|8b) L=32;; *) L=0;; esac; show $L",
    "S=zzz; case $S in 1b) L=16;; *) L=0;; esac; show $L",
    "W=''; for i in 1 2 'x y'; do W+=\"<$i>\"; done; show \"$W\" $i",
    'f() { local q=$1; A+=("$q" "$2"); }\nA=(0); f "a b" c; f d; show "${A[@]}"',
    "A=1; (A=2; show $A); show $A\ntrue && B=1 || B=2; false && C=1 || C=2; show $B $C",
    '[ -z "" ] && A=1; [[ 3 -gt 4 ]] || B=2; [ a != b ] && ! [ a = b ] && C=3; show $A $B $C; exit 0; show never',
    'CMD="show --a \'q r\' --b"; $CMD; eval "$CMD"; eval show "one two"',
    'A=(1 2 3); A[1]=x; A[3]="y z"; show "${A[@]}" "${A[1]}"',
    'show "a" "" \'\' b"c"d $\'x\'"y"\nV="  lead trail  "; show x$V"y" $V',
    'R=3e-4; show --lr=$R --lr "${RATE:-$R}" ${RATE:=5} $RATE "${Q:-"in quotes"}"',
    "A=(\n  --num-layers 32   # layers (all)\n  # --hidden 3\n  --x 1\n)\nshow ${A[@]}",
    'B="x ${A[*]-none}   ${C-c}" ; show "$B" "${B} ${B}"',
]
PRELUDE = "show() { printf '%s\\0' show \"$@\" $'\\x01'; }\n"


def by_bash(script: str) -> list[list[str]]:
    done = subprocess.run(
        ["bash", "-c", PRELUDE + script], capture_output=True, text=True, check=False, timeout=20, env={"PATH": "/bin"}
    )
    assert not done.stderr, done.stderr
    commands = done.stdout.split("\x01\0")[:-1]
    return [command.split("\0")[:-1] for command in commands]


def by_us(script: str) -> list[list[str]]:
    found = follow(script)
    assert found.problems == []
    return [list(command.words) for command in found.commands if command.words[0] == "show"]


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
@pytest.mark.parametrize("script", CASES)
def test_words_are_those_of_bash(script: str) -> None:
    assert by_us(script) == by_bash(script)


def test_random_scripts_of_arrays_and_strings_give_the_words_of_bash() -> None:
    """400 scripts of assignments, arrays and ``+=`` with all kinds of quoting, in four processes of bash."""
    random_ = random.Random(7)
    for _ in range(4):
        scripts = [_script(random_) for _ in range(100)]
        text = "\n".join(f"unset A B C X Y\n{script}" for script in scripts)
        ours, theirs = by_us(text), by_bash(text)
        assert len(ours) == len(theirs)
        for mine, right in zip(ours, theirs, strict=True):
            assert mine == right


def _script(random_: random.Random) -> str:
    words = ["--a", "1", "'b  c'", '"d e"', '""', "f\\ g", '"$X"', "$X", "${Y:-none}", '"${A[@]}"', "${B[@]}", 'x"$Y"z']
    words += ['"${B[*]}"', "-p${X}q", "$((1+2))", "'$X'", '"a${A[@]}b"']
    lines = ["X='' Y='u v'", "A=(1 '2 3') B=()"]
    for _ in range(random_.randrange(1, 7)):
        name, some = random_.choice("ABC"), " ".join(random_.choices(words, k=random_.randrange(4)))
        one = random_.choice(words)
        lines.append(random_.choice([f"{name}+=({some})", f"declare -a {name}=({some})", f"X+={one}", f"Y={one}"]))
    used = " ".join(random_.choices([*words, '"${C[@]}"', "${C[@]}", "${A[0]}", "${#B[@]}"], k=6))
    return "\n".join([*lines[:2], "C=()", *lines[2:], f"show {used}"])


@pytest.mark.parametrize(
    "text", ["$(touch owned)", "`id`", "$NOWHERE", "${!A}", "$1", "$?", "<(ls)", "{1..3}", "${X/a/b}"]
)
def test_what_only_a_run_can_tell_stays_as_it_is_written(text: str) -> None:
    (command,) = follow(f"X=aa; A=$NOWHERE\nshow --x {text}").commands
    assert not is_plain(command.words[2])
    assert shown(command.words[2]) == text


def test_a_condition_that_only_a_run_decides_is_said_with_the_value() -> None:
    script = 'if [ "$USE_FP8" = 1 ]; then A=(--fp8-format hybrid); fi\nB=("${A[@]}")\nshow "${B[@]}"\nshow x'
    first, second = follow(script).commands
    assert first.words == ("show", "--fp8-format", "hybrid")
    assert [doubt.partition(":")[0] for doubt in first.doubts] == ["line 1"]
    assert second.doubts == frozenset()


def test_a_branch_that_ends_the_script_is_not_taken() -> None:
    script = 'A=1\nif [ ! -f "$P" ]; then A=2; echo usage; exit 1; fi\n[ -d /x ] || exit 1\nshow $A'
    (command,) = [c for c in follow(script).commands if c.words[0] == "show"]
    assert command.words == ("show", "1") and not command.doubts


@pytest.mark.parametrize(
    "text",
    [
        *("A=(x(y(z" * 10_000, "A=${" * 20_000, "A='\"" * 20_000, "<<E " * 5_000, "a=(" * 3_000, "f(){ " * 3_000),
        *("if a; then " * 3_000, "$((" * 9_000, "f() { f; f; }; f", 'A="$A$A"\n' * 500, "x " * 100_000),
        "A=" + "a" * 90_000 + "\n" + 'echo "$A$A$A$A"\n' * 2_000,
        'A="eval \\"\\$A\\""; eval "$A"',
        "for i in 1 2 3 4 5 6 7 8; do " * 9 + "x; " + "done; " * 9,
    ],
)
def test_a_hostile_script_is_followed_in_no_time(text: str) -> None:
    began = time.process_time()
    follow(text)
    assert time.process_time() - began < 8
