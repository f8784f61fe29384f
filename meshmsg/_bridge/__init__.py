"""What the bridges to other systems share: their life, publishing, plain-text protocols."""
