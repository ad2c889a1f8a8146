//! Hostile input: frames of every kind, whole and broken, from every port.
