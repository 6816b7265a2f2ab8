"""What one client, name or address may use of what all share; written as `schema.py` says."""

from typing import Annotated

from msgspec import Meta

from dragoman.config.section import Section


class Limits(Section, frozen=True):
    """Quotas."""

    login_attempts_per_name_per_hour: Annotated[
        int,
        Meta(
            ge=1,
            le=1000000,
            description="Attempts to log in as one user, at all instances, from addresses that never logged in as this "
            "user.",
        ),
    ] = 100
