"""Which text the model sees around the cursor."""
