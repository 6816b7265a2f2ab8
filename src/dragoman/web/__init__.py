"""What browsers are given: HTML, CSS and ES modules as they are written, with no build step. `gateway` serves them."""
