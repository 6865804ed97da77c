"""The settings of a server: one frozen value, read once. ``table`` lists them, ``load`` reads them, ``checks`` sees
that they fit each other."""
