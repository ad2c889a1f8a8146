//! Extension headers in place.
