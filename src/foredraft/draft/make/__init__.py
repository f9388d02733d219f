"""Making a small EAGLE-3 head for a model, from the model's own answers: `foredraft draft make`."""
