"""How one request becomes an answer: keys, scripts, servers, and the two drivers that carry out effects."""
