"""Scripts that connect the steps of a flow."""
