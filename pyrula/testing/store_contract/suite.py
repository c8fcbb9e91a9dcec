"""The whole contract in one class. Each part is in a module of its own."""

from __future__ import annotations

from pyrula.testing.store_contract.appending import Appending
from pyrula.testing.store_contract.claiming import Claiming
from pyrula.testing.store_contract.continuing import Continuing
from pyrula.testing.store_contract.delivering import Delivering
from pyrula.testing.store_contract.family import Family
from pyrula.testing.store_contract.finishing import Finishing
from pyrula.testing.store_contract.following import Following
from pyrula.testing.store_contract.giving_up import GivingUp
from pyrula.testing.store_contract.happenings import Happenings
from pyrula.testing.store_contract.intervening import Intervening
from pyrula.testing.store_contract.leases import Leases
from pyrula.testing.store_contract.outside import Outside
from pyrula.testing.store_contract.publishing import Publishing
from pyrula.testing.store_contract.reading import Reading
from pyrula.testing.store_contract.scheduling import Scheduling
from pyrula.testing.store_contract.submitting import Submitting
from pyrula.testing.store_contract.timing import Timing
from pyrula.testing.store_contract.walking import Walking

__all__ = ["StoreContract"]


class StoreContract(
    Submitting,
    Claiming,
    Appending,
    GivingUp,
    Finishing,
    Delivering,
    Outside,
    Leases,
    Timing,
    Walking,
    Publishing,
    Reading,
    Following,
    Scheduling,
    Happenings,
    Family,
    Continuing,
    Intervening,
):
    """Everything that a store must do. Subclass it, and give it an empty store in the fixture `store`."""
