"""`PostgresStore`: runs in a Postgres database, for the processes of many machines."""
