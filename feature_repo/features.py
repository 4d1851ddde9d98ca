"""What Headwater keeps for a user. Change it, then run `headwater apply`.

Feast imports every Python file in this folder; declarations only, nothing heavy.
"""

from datetime import timedelta

from feast import Entity, FeatureService, FeatureView, Field, FileSource, PushSource, ValueType
from feast.types import Float32, Int64, String

from streams.views import representation_view, sequence_view

user = Entity(
    name="user",
    join_keys=["user_id"],
    value_type=ValueType.STRING,
    description="Who engages, and whom things are ranked for.",
)

# What a user looked at: many events, most of them weak.
engagement = sequence_view(
    "engagement",
    entity=user,
    event_types=["impression", "view", "long_view", "click"],
    max_length=256,
    max_age=timedelta(days=365),
    description="The newest things that the user saw or opened.",
)

# What a user wanted: few events, worth keeping for long.
likes = sequence_view(
    "likes",
    entity=user,
    event_types=["like", "share", "follow", "conversion"],
    max_length=128,
    max_age=timedelta(days=3 * 365),
    description="The newest things that the user liked, shared, followed or bought.",
)

user_representation = representation_view(
    "user_representation",
    entity=user,
    encoder="user_encoder",
    dimensions=64,
    sequences=[engagement, likes],
    max_length=128,
    ttl=timedelta(days=30),
    description="The encoder's vector of the user, computed before anyone asks.",
)

# An ordinary Feast view: `FeatureStore.push("user_profile_push", df)` writes it. Feast wants a file
# beside every push source; this one is empty, and `feast materialize` reads what is put there.
user_profile_source = FileSource(
    name="user_profile_file",
    path="data/user_profile.parquet",
    timestamp_field="event_timestamp",
)
user_profile_push = PushSource(name="user_profile_push", batch_source=user_profile_source)
user_profile = FeatureView(
    name="user_profile",
    entities=[user],
    schema=[
        Field(name="country", dtype=String),
        Field(name="signup_time", dtype=Int64),
        Field(name="activity", dtype=Float32),
    ],
    ttl=timedelta(days=365),
    source=user_profile_push,
    description="Facts that another system pushes.",
)

ranking_v1 = FeatureService(
    name="ranking_v1",
    features=[engagement, likes, user_representation],
    description="What the ranker reads; with full_feature_names=True, as views share names.",
)
retrieval_v1 = FeatureService(
    name="retrieval_v1",
    features=[user_representation[["vector", "version"]]],
    description="What candidate retrieval reads.",
)
