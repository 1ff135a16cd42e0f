"""The routes of the pages (`pages`) and of the JSON API (`api`), and what each user may see (`reading`)."""
