"""Settings of a server: the table, the loading of its values, and the checks across settings.

``config.settings`` is the table. ``config.config`` reads the values once at start, checks that they fit each other and
derives paths and addresses from them; the result is one frozen value."""
