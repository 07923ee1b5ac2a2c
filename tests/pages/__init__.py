"""Pages whose blocks are run as they are pasted: README.md, the cookbook and SKILL.md."""
