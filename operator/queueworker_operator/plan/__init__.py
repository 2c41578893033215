"""What to do next, decided from a resource and facts. Pure: no I/O, no clock, no log; imports only api."""
