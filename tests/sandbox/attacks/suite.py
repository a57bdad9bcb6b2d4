"""The attack suite: every attack, first without isolation and then against a backend.

An attack is proven if it succeeds without isolation, in a process of its own in the same run: one
that fails even there shows nothing. After each attack an honest program must get its right verdict.
"""

from __future__ import annotations

import dataclasses
import json
import secrets
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from attacks.cheats import CHEATS, Cheat
from attacks.escape import Escape
from attacks.files import FILES
from attacks.kernel import KERNEL
from attacks.limits import LIMITS
from attacks.network import NETWORK
from attacks.processes import PROCESSES
from attacks.targets import secret_in_environment
from attacks.thefts import THEFTS, Theft
from fugu.sandbox import Case, Executor, Task, grade, make_executor

ATTACKS: tuple[Escape | Cheat | Theft, ...] = (
    *NETWORK,
    *FILES,
    *PROCESSES,
    *LIMITS,
    *KERNEL,
    *CHEATS,
    *THEFTS,
)
_HONEST = Task("honest", "double", (Case((21,), 42), Case(("a",), "aa")))


@dataclass(frozen=True)
class Finding:
    """The outcome of one attack.

    Attributes:
        name: Name of the attack.
        category: What must be isolated from it, such as network or files.
        proven: Whether it succeeds without isolation.
        succeeded: Whether it succeeded against the backend.
        survived: Whether the next honest program got its right verdict.
        message: How the attack ended.
    """

    name: str
    category: str
    proven: bool
    succeeded: bool
    survived: bool
    message: str = ""

    @property
    def held(self) -> bool:
        """Whether the backend withstood the attack: it gained nothing and broke nothing."""
        return self.survived and not self.succeeded


def attack_all(
    backend: str = "zygote", *, only: Sequence[str] = (), **options: Any
) -> list[Finding]:
    """Run the suite against a backend.

    Args:
        backend: Name of the backend, as `make_executor` takes it.
        only: Names of attacks or categories to run; all of them if empty.
        **options: Options of the backend.
    """
    chosen = [attack for attack in ATTACKS if not only or {attack.name, attack.category} & {*only}]
    if not chosen:
        categories = dict.fromkeys(attack.category for attack in ATTACKS)
        raise ValueError(f"attacks: expected one of {', '.join(categories)}; got {list(only)}.")
    secret = f"secret-{secrets.token_hex(8)}"
    findings = []
    with (
        secret_in_environment(secret),
        make_executor("unsafe") as unsafe,
        make_executor(backend, **options) as executor,  # type: ignore[arg-type]
    ):
        for attack in chosen:
            proven = attack.is_proven(unsafe, secret)
            succeeded, message = attack.attempt(executor, secret)
            survived = _is_honest(executor)
            findings.append(
                Finding(attack.name, attack.category, proven, succeeded, survived, message)
            )
    return findings


def _is_honest(executor: Executor) -> bool:
    right = grade("def double(x): return x + x", _HONEST, executor)
    wrong = grade("def double(x): return x", _HONEST, executor)
    return right.verdict == "passed" and wrong.verdict == "wrong"


def main() -> None:
    """Print findings as lines of JSON; `unprivileged.py` starts this as another user."""
    for finding in attack_all(**json.loads(sys.argv[1])):
        print(json.dumps(dataclasses.asdict(finding)))


if __name__ == "__main__":
    main()
