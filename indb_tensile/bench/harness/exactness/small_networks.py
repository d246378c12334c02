"""Small networks of bench/harness/exactness/network_kinds.py that are not mainly convolutional."""

import torch
from torch import nn
from torch.nn import functional

CLASSES = 10
TOKENS = 50


# --- attention -----------------------------------------------------------------------------------------------------


class Windows(nn.Module):
    """Attention in shifted windows (Liu et al. 2021). It writes its mask through slices of slices."""

    side, window, shift, width, heads = 8, 4, 2, 8, 2

    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, self.width, 2, 2)
        self.norms = nn.ModuleList(nn.LayerNorm(self.width) for _ in range(2))
        self.mixes = nn.ModuleList(nn.Linear(self.width, 3 * self.width) for _ in range(2))
        self.positions = nn.Parameter(torch.zeros(2, (2 * self.window - 1) ** 2, self.heads))
        self.head = nn.Linear(self.width, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the network's output."""
        x = self.patches(x).permute(0, 2, 3, 1)
        for turn, shift in enumerate((0, self.shift)):
            x = x + self._attend(turn, self.norms[turn](x), shift)
        x = x.clone()
        x[:, :1, :1] = 0.0  # like a padded border
        predicted: torch.Tensor = self.head(x.mean((1, 2)))
        return predicted

    def _attend(self, turn: int, x: torch.Tensor, shift: int) -> torch.Tensor:
        rolled = torch.roll(x, (-shift, -shift), (1, 2))
        cut = self._cut(rolled)
        q, k, v = (
            part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in self.mixes[turn](cut).chunk(3, -1)
        )
        scores = q @ k.transpose(-1, -2) + self._bias(turn)
        if shift:
            mask = self._mask(x.new_zeros(1, self.side, self.side, 1))
            count = mask.shape[0]
            scores = (scores.unflatten(0, (-1, count)) + mask.unsqueeze(1)).flatten(0, 1)
        mixed = (scores.softmax(-1) @ v).transpose(1, 2).flatten(2)
        return torch.roll(self._join(mixed, x.shape[0]), (shift, shift), (1, 2))

    def _bias(self, turn: int) -> torch.Tensor:
        grid = torch.arange(self.window)
        down, right = (axis.flatten() for axis in torch.meshgrid(grid, grid, indexing="ij"))
        rows, columns = (axis[:, None] - axis[None] + self.window - 1 for axis in (down, right))
        return self.positions[turn][rows * (2 * self.window - 1) + columns].permute(2, 0, 1)

    def _mask(self, regions: torch.Tensor) -> torch.Tensor:
        bounds = (slice(0, -self.window), slice(-self.window, -self.shift), slice(-self.shift, None))
        for index, down in enumerate(bounds):
            for other, right in enumerate(bounds):
                regions[:, down, right] = 3 * index + other
        windows = self._cut(regions).squeeze(-1)
        return (windows[:, None] - windows[:, :, None]).ne(0).to(regions.dtype) * -100.0

    def _cut(self, x: torch.Tensor) -> torch.Tensor:
        count = self.side // self.window
        tiles = x.view(x.shape[0], count, self.window, count, self.window, x.shape[-1]).transpose(2, 3)
        return tiles.reshape(-1, self.window**2, x.shape[-1])

    def _join(self, windows: torch.Tensor, rows: int) -> torch.Tensor:
        count = self.side // self.window
        tiles = windows.view(rows, count, count, self.window, self.window, -1).transpose(2, 3)
        return tiles.reshape(rows, self.side, self.side, -1)


class DecoderNetwork(nn.Module):
    """A causal transformer whose last layer shares the weights of its first (Press and Wolf 2017)."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(TOKENS, 16)
        self.positions = nn.Parameter(torch.randn(12, 16) * 0.02)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(16, 2, 32, dropout=0.1, batch_first=True, norm_first=True, activation="gelu")
            for _ in range(2)
        )
        self.head = nn.Linear(16, TOKENS, bias=False)
        self.head.weight = self.tokens.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the network's output."""
        causal = torch.full((12, 12), float("-inf")).triu(1)
        x = self.tokens(x) + self.positions
        for layer in self.layers:
            x = layer(x, src_mask=causal)
        predicted: torch.Tensor = self.head(x)
        return predicted


class Encoder(nn.Module):
    """One layer, applied three times with the same weights (Lan et al. 2020), with rotary positions."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(TOKENS, 16, padding_idx=0)
        self.mix = nn.Linear(16, 48)
        self.forth = nn.Linear(16, 64)
        self.back = nn.Linear(32, 16)
        self.norm = nn.RMSNorm(16)
        self.head = nn.Linear(16, TOKENS)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the network's output."""
        x = self.tokens(x)
        angles = torch.arange(x.shape[1])[:, None] / 10.0 ** torch.arange(0, 4)
        for _ in range(3):
            q, k, v = (part.unflatten(-1, (2, 8)).transpose(1, 2) for part in self.mix(self.norm(x)).chunk(3, -1))
            q, k = _rotated(q, angles), _rotated(k, angles)
            x = x + functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
            gate, value = self.forth(self.norm(x)).chunk(2, -1)
            x = x + self.back(functional.silu(gate) * value)
        predicted: torch.Tensor = self.head(x)
        return predicted


def _rotated(x: torch.Tensor, angles: torch.Tensor) -> torch.Tensor:
    """Rotate each pair of numbers by an angle for its position (Su et al. 2021)."""
    even, odd = x[..., ::2], x[..., 1::2]
    turned = torch.stack([even * angles.cos() - odd * angles.sin(), even * angles.sin() + odd * angles.cos()], -1)
    return turned.flatten(-2)


class Experts(nn.Module):
    """Two of four experts for each token (Shazeer et al. 2017), selected by the gate through gather and scatter."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(16, 4, bias=False)
        self.forth = nn.Parameter(torch.randn(4, 16, 32) * 0.1)
        self.back = nn.Parameter(torch.randn(4, 32, 16) * 0.1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the network's output."""
        tokens = x.flatten(0, 1)
        weights, chosen = self.gate(tokens).topk(2)
        shares = torch.zeros(len(tokens), 4).scatter(1, chosen, weights.softmax(-1))
        each = functional.gelu(torch.einsum("td,edh->eth", tokens, self.forth))
        mixed = torch.einsum("eth,ehd,te->td", each, self.back, shares)
        return x + mixed.view_as(x)


# --- tables, graphs and sequences ----------------------------------------------------------------------------------


class Recommender(nn.Module):
    """Large embeddings of categories, a sum of some, and their products (Naumov et al. 2019)."""

    def __init__(self) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(5_000, 8) for _ in range(4))
        self.bag = nn.EmbeddingBag(5_000, 8, mode="sum")
        self.top = nn.Sequential(nn.Linear(10, 16), nn.ReLU(), nn.Linear(16, 1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the network's output."""
        vectors = [table(x[:, k]) for k, table in enumerate(self.tables)]
        stacked = torch.stack([*vectors, self.bag(x[:, 4:])], 1)
        products = stacked @ stacked.transpose(1, 2)
        rows, columns = torch.tril_indices(5, 5, -1)
        predicted: torch.Tensor = self.top(products[:, rows, columns])
        return predicted


class Towers(nn.Module):
    """Two towers that learn which of the batch's rows belong together (Radford et al. 2021)."""

    def __init__(self) -> None:
        super().__init__()
        self.items = nn.Embedding(1_000, 16)
        self.left = nn.Sequential(nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 8))
        self.right = nn.Sequential(nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 8))
        self.scale = nn.Parameter(torch.tensor(1.0))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the network's loss."""
        items = self.items(x)
        left = functional.normalize(self.left(items[:, :6].mean(1)), dim=-1)
        right = functional.normalize(self.right(items[:, 6:].mean(1)), dim=-1)
        logits = left @ right.t() * self.scale.exp()
        own = torch.arange(len(x))
        return (functional.cross_entropy(logits, own) + functional.cross_entropy(logits.t(), own)) / 2


class GraphConvolution(nn.Module):
    """Messages along the edges of a graph, by sums (Kipf and Welling 2017) and by attention (Velickovic et al.)."""

    sources: torch.Tensor
    targets: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        nodes = torch.arange(9)
        self.register_buffer("sources", torch.cat([nodes, nodes, nodes]))
        self.register_buffer("targets", torch.cat([nodes, (nodes + 1) % 9, (nodes * 2) % 9]))
        self.first = nn.Linear(5, 8)
        self.second = nn.Linear(8, 8)
        self.score = nn.Linear(16, 1)
        self.head = nn.Linear(8, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the network's output."""
        sent = self.first(x)[:, self.sources]
        x = torch.relu(torch.zeros(x.shape[0], 9, 8).index_add(1, self.targets, sent))
        x = self.second(x)
        ends = torch.cat([x[:, self.sources], x[:, self.targets]], -1)
        weights = functional.leaky_relu(self.score(ends)).exp()
        into = self.targets[None, :, None].expand_as(weights)
        totals = torch.zeros(x.shape[0], 9, 1).scatter_add(1, into, weights)
        shares = weights / totals.gather(1, into)
        x = torch.zeros_like(x).index_add(1, self.targets, x[:, self.sources] * shares)
        predicted: torch.Tensor = self.head(x.mean(1))
        return predicted


class RecurrentNetwork(nn.Module):
    """An LSTM in both directions, then a GRU and a plain recurrent layer, with dropout between LSTM layers."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(6, 8, num_layers=2, bidirectional=True, dropout=0.2, batch_first=True)
        self.gru = nn.GRU(16, 8, batch_first=True)
        self.rnn = nn.RNN(8, 8, batch_first=True)
        self.head = nn.Linear(8, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the network's output."""
        predicted: torch.Tensor = self.head(self.rnn(self.gru(self.lstm(x)[0])[0])[0][:, -1])
        return predicted


class Unrolled(nn.Module):
    """GRU and LSTM cells, unrolled step by step. They write their outputs into one tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(TOKENS, 8)
        self.gru = nn.GRUCell(8, 8)
        self.lstm = nn.LSTMCell(8, 8)
        self.head = nn.Linear(8, TOKENS)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the network's output."""
        embedded = self.tokens(x)
        hidden = first = second = embedded.new_zeros(len(x), 8)
        outputs = torch.zeros_like(embedded)
        for step in range(x.shape[1]):
            hidden = self.gru(embedded[:, step], hidden)
            first, second = self.lstm(hidden, (first, second))
            outputs[:, step] = first
        predicted: torch.Tensor = self.head(outputs)
        return predicted


# --- others --------------------------------------------------------------------------------------------------------


class Spectral(nn.Module):
    """Convolutions by complex weights of the lowest frequencies (Li et al. 2021)."""

    def __init__(self) -> None:
        super().__init__()
        self.weights = nn.Parameter(torch.randn(2, 4, 5, dtype=torch.complex64) * 0.3)
        self.last = nn.Parameter(torch.randn(4, 2, 5, dtype=torch.complex64) * 0.3)
        self.bypass = nn.Conv1d(2, 2, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the network's output."""
        low = torch.fft.rfft(x)[..., :5]
        mixed = torch.einsum("bif,iof->bof", low, self.weights)
        bent = torch.polar(torch.tanh(mixed.abs() + 1e-3), mixed.angle())
        back = torch.einsum("bof,oif->bif", bent, self.last)
        bypassed: torch.Tensor = self.bypass(x)
        transformed: torch.Tensor = torch.fft.irfft(back, n=x.shape[-1])
        return transformed + bypassed


class Adversarial(nn.Module):
    """Generator and discriminator in one step. The generator gets the discriminator's gradient negated."""

    def __init__(self) -> None:
        super().__init__()
        self.generator = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 8), nn.Tanh())
        self.discriminator = nn.Sequential(nn.Linear(8, 16), nn.LeakyReLU(0.2), nn.Dropout(0.3), nn.Linear(16, 1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the network's loss."""
        generated = self.generator(torch.randn_like(x))
        reversed_gradient = 2 * generated.detach() - generated
        true, false = self.discriminator(x), self.discriminator(reversed_gradient)
        return functional.softplus(-true) + functional.softplus(false)


class Diffusion(nn.Module):
    """Learns to predict the noise that it adds (Ho et al. 2020). Each iteration draws time and noise."""

    def __init__(self) -> None:
        super().__init__()
        self.times = nn.Sequential(nn.Linear(8, 8), nn.SiLU())
        self.first = nn.Conv2d(1, 8, 3, padding=1)
        self.norm = nn.GroupNorm(2, 8)
        self.last = nn.Conv2d(8, 1, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the network's loss."""
        time = torch.rand(len(x), 1)
        noise = torch.randn_like(x)
        signal = torch.cos(time * 1.5)[..., None, None]
        waves = time * 2.0 ** torch.arange(4)
        embedded = self.times(torch.cat([waves.sin(), waves.cos()], -1))
        hidden = self.first(x * signal + noise * (1 - signal**2).sqrt()) + embedded[..., None, None]
        predicted: torch.Tensor = self.last(functional.silu(self.norm(hidden)))
        return (predicted - noise).square().mean((1, 2, 3))


class Perceptron(nn.Module):
    """Dense layers with scaled exponential units."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(24, 32), nn.SELU(), nn.Linear(32, 32), nn.GLU(), nn.Linear(16, CLASSES))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the network's output."""
        predicted: torch.Tensor = self.layers(x)
        return predicted
