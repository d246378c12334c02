"""In-database deep learning whose memory is planned tensor by tensor."""
