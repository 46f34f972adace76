"""The forward pass of each kind of model, its parts, and the device that it runs on."""
