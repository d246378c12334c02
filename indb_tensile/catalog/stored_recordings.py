"""The form that a recording of iterations has in the catalog: compressed JSON."""

import zlib

import msgspec

from indb_tensile.errors import RequestError
from indb_tensile.scheduler.timing.recorded_iterations import Recording

_MOST_JSON_BYTES = 64 << 20  # no trainer writes a longer text, which would fill the reader's memory

_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(Recording)


def encode_recording(recording: Recording) -> bytes:
    """Return the recording as compressed JSON."""
    return zlib.compress(_encoder.encode(recording))


def decode_recording(stored: bytes) -> Recording:
    """Return the stored recording. Raises RequestError if the bytes are none."""
    inflater = zlib.decompressobj()
    try:
        text = inflater.decompress(stored, _MOST_JSON_BYTES)
        if not inflater.eof:
            raise RequestError("the stored recording is cut off, or longer than a recording can be")
        return _decoder.decode(text)
    except (zlib.error, msgspec.DecodeError) as error:
        raise RequestError(f"the stored recording cannot be read: {error}", hint="Record it again.") from error
