"""The command `holdfast`: one module per verb."""
