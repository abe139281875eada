"""Agent Skills: folders with a `SKILL.md` that says how to do a task, read when it is needed."""
