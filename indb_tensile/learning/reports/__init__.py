"""The data report of a training: facts about the table and the result, in words."""
