"""What the gate found, in the forms that people and CI hosts read: one module a format."""
