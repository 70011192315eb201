"""Tools that are built on the core. Each is one folder with its commands; it imports the core and no other tool."""
