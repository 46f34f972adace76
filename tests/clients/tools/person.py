"""The type that scripts have replies read into."""

from pydantic import BaseModel, ConfigDict, Field


class Person(BaseModel):
    """Somebody."""

    model_config = ConfigDict(extra="forbid")
    name: str = Field(max_length=20)
    age: int = Field(ge=0, le=150)
