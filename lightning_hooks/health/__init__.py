"""What a training says about itself: evidence, rules, findings and causes. Knows neither torch nor Lightning."""
