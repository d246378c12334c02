"""How good a model is, and what its predictions depend on."""
