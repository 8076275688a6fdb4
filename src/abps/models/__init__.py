"""Models and their local training: linear and additive models, networks, any nn.Module."""
