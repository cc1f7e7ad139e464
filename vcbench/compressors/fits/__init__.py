"""What single methods fit to a model before they can be used."""
