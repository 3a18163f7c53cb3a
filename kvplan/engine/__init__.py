"""Start, watch and stop real vLLM; parse its log; scrape its metrics; sample its memory."""
