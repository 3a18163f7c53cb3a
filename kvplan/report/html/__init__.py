"""A tuning run as one self-contained HTML page: figures as inline SVG, no script from elsewhere, no network."""
