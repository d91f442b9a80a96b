"""Outside systems, one file each; what they need is imported where it is used."""
