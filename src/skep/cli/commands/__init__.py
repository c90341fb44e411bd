"""The commands of the nouns, as they are typed: arguments, options and help. What they do is one level up."""
