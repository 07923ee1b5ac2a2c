"""What a training says about itself: evidence, rules, findings and causes. Knows neither torch nor Lightning.

`Evidence` holds recent step views as arrays. A `HealthRule` reads it and gives signs. `Diagnosis` turns signs into findings,
and findings into causes. `Journal` writes them beside the event file, and `text` puts them into words.
"""
