"""Native multi-particle environments: simple_spread and simple_tag."""

from coterie.worlds.mpe.world import Spread, SpreadSettings, Tag, TagSettings

__all__ = ["Spread", "SpreadSettings", "Tag", "TagSettings"]
