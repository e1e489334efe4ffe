"""Problems of the package reasoning-gym."""
