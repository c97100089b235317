"""The only room that speaks SQL. One file per noun; every function takes a connection first.

Nothing here decides, and nothing here commits: transactions belong to the services.
"""
