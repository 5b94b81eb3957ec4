"""The bodies of requests: a class per endpoint, from which checks, the OpenAPI schema and docs/server-api.md are made."""
