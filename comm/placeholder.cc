// removed when the first source lands
