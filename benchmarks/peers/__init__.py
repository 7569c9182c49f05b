"""Training steps of libraries that are not dependencies, each as its documentation tells people to write them."""
