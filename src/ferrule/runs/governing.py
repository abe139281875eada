"""The settings that govern a run from its start to its end: its limits and its policy.

They are stored with the run, because it may resume in a process that has other settings, or none.
A run that waits for a person would otherwise lose its policy where a worker, a page or a command
resumes it.

What holds when a run resumes:

- The policy that it started with, together with the policy in force there; the stricter verdict
  wins. `run.resume(policy=...)` replaces the first.
- The limits in force there, if there are any; otherwise those that it started with.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from msgspec import structs

from ferrule.approval.stored_policy import policy_form, read_policy
from ferrule.encoding.stored import reading
from ferrule.errors import ConfigurationError
from ferrule.runs.limits import Limits
from ferrule.settings import check_policy

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ferrule.approval.policy import Policy
    from ferrule.settings import Settings


class Governing:
    """The limits and the policy that a run was started with."""

    def __init__(
        self,
        limits: Limits | None = None,
        policy: Policy | None = None,
        stored_policy: Mapping[str, Any] | None = None,
    ) -> None:
        self.limits = limits
        self._policy = policy
        self._stored_policy = stored_policy
        """The policy as JSON data: as it was read, or once it was needed."""

    @classmethod
    def of(cls, settings: Settings) -> Governing:
        """The limits and the policy of these settings."""
        return cls(settings.limits, settings.policy)

    @classmethod
    def read(cls, form: Mapping[str, Any]) -> Governing:
        """Read from `form`. The policy is read when the run resumes."""
        limits = form.get("limits")
        if limits is not None:
            limits = Limits(**limits)
        return cls(limits, None, form.get("policy"))

    def form(self) -> dict[str, Any]:
        """As JSON data.

        Raises `ConfigurationError` for a policy that cannot be stored; see `policy_form`.
        """
        form: dict[str, Any] = {}
        if self.limits is not None:
            form["limits"] = dataclasses.asdict(self.limits)
        if self._stored_policy is None and self._policy is not None:
            self._stored_policy = policy_form(self._policy)
        if self._stored_policy is not None:
            form["policy"] = self._stored_policy
        return form

    def copied(self) -> Governing:
        """The same limits and policy, for another run."""
        return Governing(self.limits, self._policy, self._stored_policy)

    def replace_policy(self, policy: Policy) -> None:
        """Let another policy govern the run from now on."""
        check_policy(policy)
        self._policy, self._stored_policy = policy, None

    def within(self, settings: Settings) -> Settings:
        """The settings in force, with what governs the run.

        Raises `ConfigurationError` if its policy is neither stored nor in force.
        """
        policy = self._policy
        if policy is None and self._stored_policy is not None:
            with reading("The policy of a run", ConfigurationError):
                policy = read_policy(self._stored_policy, settings.policy)
        limits = settings.limits
        if limits is None:
            limits = self.limits
        return structs.replace(settings, limits=limits, policy=_both(policy, settings.policy))


def _both(policy: Policy | None, in_force: Policy | None) -> Policy | None:
    if policy is None or in_force is None:
        return policy or in_force
    is_newer = bool(policy.name) and policy.name == in_force.name
    if is_newer or policy == in_force:
        return in_force
    return policy.together_with(in_force)
