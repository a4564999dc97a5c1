//! Packs a model directory into a bundle.
