"""The meanings of all options, in one or two sentences each, for the reference pages (settings: setting_meanings.py).

Keys are the names in the tables that check the options. A test requires a meaning for each of these names and for no
other name. Types, ranges and defaults do not belong here, because the page takes them from those tables.
"""

HYPERPARAMS: dict[str, str] = {
    "epochs": "How often training passes over the training rows, at most; early stopping may end it sooner. "
    "Null: chosen by the number of training rows. If epochs is set, early stopping must be requested explicitly.",
    "batch_size": "Rows of one training step. The last step of an epoch takes the remaining rows. Null: chosen "
    "by the number of training rows.",
    "micro_batch_size": "Rows that a step computes at once; the gradients of these parts add up to that of the "
    "batch. Null: the whole batch. Smaller parts need less memory and more time.",
    "length_buckets": "The most lengths to which texts that are read as tokens are padded in training. Batches then "
    "have rows of like length, so that a batch of short texts takes less time; each length is a step of its own. "
    "Null: one length.",
    "reduce": "With `devices` of 2 or more: how the devices add up the gradients of a step. `exact`: in the order of "
    "the parts, to the bits of one device with the same `micro_batch_size`. `fast`: each device adds up its own "
    "parts, and PyTorch's all-reduce adds up the devices; it sends less, and the last bits are not those of one "
    "device.",
    "zero_stage": "With `devices` of 2 or more: 1 divides the optimizer's state among the devices, as the first "
    "stage of ZeRO does (Rajbhandari and others 2020): each device keeps the state of some parameters and updates "
    "them. 0: each device keeps the whole state. Null: it is divided where it does not fit into the smallest device "
    "without swaps, and iterations are foretold to be faster divided. The results have the same bits.",
    "precision": "The precision of matrix products and convolutions; parameters, gradients and optimizer stay "
    "float32. On a GPU, torch is PyTorch's default: convolutions in TensorFloat-32 (19 bits), products in float32; "
    "float32 and tf32 use that precision for both. On processors these three are the same, float32. With bfloat16, "
    "all operators that tolerate it compute in 16 bits.",
    "optimizer": "The optimizer: stochastic gradient descent, Adam, Adam with decoupled weight decay, Adagrad, "
    "RMSprop, each as in `torch.optim`; or Lion (Chen and others 2023), which has half of Adam's state.",
    "learning_rate": "The rate after the warm-up. Null: 0.05 for sgd, 0.002 for adam and adamw, 0.01 for "
    "adagrad, 0.001 for rmsprop, 0.0003 for lion.",
    "schedule": "How the learning rate changes: `constant` not at all; `cosine` falls as half a cosine to zero; "
    "`step` falls at `decay_at`; `one_cycle` rises from a 25th and falls to a 250,000th, as "
    "`torch.optim.lr_scheduler.OneCycleLR` without a cycle of the momentum; `plateau` falls when the validation loss "
    "does not. The length is that of all `epochs`, also if training stops early.",
    "warmup": "The share of all steps in which the learning rate rises: linearly from zero, with one_cycle as half a "
    "cosine. Null: 0.3 for one_cycle, 0 for the others.",
    "decay": "With the schedules step and plateau: the factor by which the rate falls each time.",
    "decay_at": "With the schedule step: the shares of all steps at which the rate falls.",
    "decay_patience": "With the schedule plateau: the rate falls after more than this many epochs without a "
    "validation loss that is lower by at least 0.01 %. Null: a twentieth of `epochs`, at least 1.",
    "momentum": "With sgd and rmsprop: the momentum. Null: 0.9 for sgd, 0 for rmsprop.",
    "nesterov": "With sgd: Nesterov's momentum; needs a momentum above 0.",
    "betas": "With adam and adamw: the decay of the running means of the gradient and of its square. With lion: the "
    "decay of the mean gradient in the update and in the state. Null: 0.9 and 0.99 for lion, 0.9 and 0.999 for the "
    "others.",
    "alpha": "With rmsprop: the decay of the running mean of the gradient's square.",
    "centered": "With rmsprop: divide by the running variance of the gradient, not by the mean of its square.",
    "eps": "Not with sgd and lion: the number added to the denominator, for numerical stability. Null: 1e-10 for "
    "adagrad, 1e-8 for the others.",
    "weight_decay": "The factor of weight decay, which pulls parameters towards zero. With adamw and lion the decay "
    "is decoupled: it is no part of the gradient. Null: 0.01 for adamw, 0.1 for lion, 0 for the others.",
    "weight_decay_of": "Which parameters have weight decay: `all`, or `weights`, which leaves out biases, norms, "
    "scales and other parameters of one dimension.",
    "clip_norm": "The largest norm of all gradients together; larger gradients are scaled down. Null: no bound.",
    "average_decay": "The decay of a moving average of the weights, which is validated and published instead of the "
    "weights. The average starts with the weights after the first step. After each later step it is `average_decay` "
    "times itself plus the rest times the weights. Training itself uses the weights. Buffers, such as the running "
    "statistics of batch normalisation, are published without averaging. The method is that of "
    "`torch.optim.swa_utils.AveragedModel` with `get_ema_multi_avg_fn`. The average needs as much memory as the "
    "weights. Null: no average; 0.999 suits trainings of thousands of steps.",
    "loss": "What training minimises. Null: `cross_entropy` for classification, `mse` for regression, "
    "`binary_cross_entropy` of each label for multilabel and `pinball` for forecast, `reconstruction` for "
    "anomaly and `in_batch_softmax` for pairs, which have no other. For "
    "classification also `focal`, in which a row counts less the more probable its class is already. For regression: "
    "`mse` is the squared error and predicts a mean; `mae` is the absolute error and predicts a median; `huber` is "
    "squared up to an error of one standard deviation of the target, and linear beyond; `quantile` predicts a "
    "quantile; `poisson` is for counts of 0 or more and predicts no negative values.",
    "label_smoothing": "With the loss cross_entropy: the share of each row's target that is spread over all classes. "
    "Null: 0.",
    "gamma": "With the loss focal: the exponent of 1 - p, where p is the probability of the row's class; 0 is cross "
    "entropy. Null: 2.",
    "quantile": "With the loss quantile: the share of rows whose target is below the prediction. Null: 0.5.",
    "class_weight": "The weight of each class in the loss: `balanced` makes all classes count the same; an object "
    'has weights by class, such as `{"yes": 5}`. Of sets of labels, `balanced` makes the rows with a label and those '
    "without it count the same for each label, and a weight by label is that of the rows which have it. Metrics are "
    "not weighted.",
    "weight": "A column of numbers of 0 or more: the weight of each row in the loss. It is no feature. Metrics are "
    "not weighted.",
    "ensemble": "The number of networks that are trained as one version and predict their mean. They differ in their "
    "first weights: the first one has those of `seed`, the next one those of `seed` + 1. Memory and time grow with "
    "the number. Null: 5 for fewer than 1,000 training rows, if the architecture is `auto` and `epochs` is left out "
    "too, else 1.",
    "augment_flip": "Whether half of the images are mirrored, drawn anew for each row in each epoch. None of the "
    "`augment_...` applies to a validation or a prediction.",
    "augment_shift": "The share of height and width by which an image is moved at most, drawn as above.",
    "augment_rotation": "The degrees by which an image is turned at most, in either direction.",
    "augment_color": "The share by which brightness and contrast are changed at most; each colour by half of it.",
    "augment_cutout": "The share of height and width of a rectangle that is replaced by the mean colour.",
    "mixup": "For classification of images: the alpha of mixup. Each image of a batch becomes a mean of itself and "
    "another one, with shares from the Beta distribution of (alpha, alpha), and has both classes with these shares, "
    "drawn anew for each row in each epoch. Null: images are not mixed.",
    "contamination": "For anomalies: the share of the rows that are taken for anomalies. A row is one if its score "
    "is above 1 - `contamination`. Null: 0.01.",
    "baseline": "Whether gradient boosting, or for anomalies an isolation forest, is fitted to the same rows after "
    "the publication, and its metrics are "
    "stored beside those of the version (`tensile_training_info`).",
    "freeze": "The layers whose weights do not change, by their numbers in the network, as in "
    '`["1", "4"]`; an error about an unknown layer lists them. A frozen layer takes part in the forward pass, and '
    "has no gradient and no optimizer state. The running statistics of batch normalisation still change. Of use with "
    "`init_from`. Null: all layers are trained.",
    "seed": "The seed of the initial weights, of the order of the rows, and of dropout.",
}

ARCHITECTURES: dict[str, str] = {
    "auto": "Chosen by columns and rows: `cnn` or `resnet` for one column of images, `wide_and_deep` for images or "
    "texts that are read beside other columns, and for 1,000 training rows or more of at most 64 numbers and "
    "categories, else `mlp`.",
    "mlp": "Fully connected layers.",
    "cnn": "Blocks of convolutions and pooling, then fully connected layers.",
    "resnet": "Stages of residual blocks, then the mean over the places of the image.",
    "vit": "Blocks of attention between the patches of an image, then their mean.",
    "timm": "A network of the library [timm](https://huggingface.co/docs/timm), without pretrained weights.",
    "layers": "A list of layers that you define; see the list below.",
    "tabm": "An ensemble of fully connected networks that share most of their weights (TabM, Gorishniy and others "
    "2025). A prediction is the mean of the members.",
    "residual_mlp": "Blocks of fully connected layers, each added to its input.",
    "ft_transformer": "Attention between the values of a row (FT-Transformer, Gorishniy and others 2021).",
    "dcn": "Products of features beside fully connected layers (DCN V2, Wang and others 2021).",
    "wide_and_deep": "A linear model and fully connected layers, added up (Cheng and others 2016).",
    "autoencoder": "For anomalies: reconstructs the columns of a row from a narrow layer in its middle (Hinton and "
    "Salakhutdinov 2006), and learns a centre from which the distance of each column counts as well. `auto` chooses "
    "it for anomalies.",
    "two_towers": "For pairs: a network for the query and one for the item, whose vectors are near where both go "
    "together (Huang and others 2013). `auto` chooses it for pairs.",
    "window_mlp": "For forecasts: residual blocks over a whole window, added to a learned mean of simple "
    "forecasts (as in N-BEATS, Oreshkin and others 2020, and TiDE, Das and others 2023). `auto` chooses it for a "
    "forecast.",
    "dlinear": "For forecasts: linear maps of a window's moving average and of the rest (Zeng and others 2023).",
    "tcn": "For forecasts: causal convolutions of growing dilation (Bai and others 2018), added to a learned mean of "
    "simple forecasts.",
    "window_lstm": "For forecasts: an LSTM over the steps of a window, added to a learned mean of simple forecasts.",
    "pretrained": "A registered network that reads the columns of tokens, then fully connected layers. See "
    "[Pretrained networks](../user/pretrained.md).",
    "boosting": "Scikit-learn's HistGradientBoosting, fitted on the processor without device memory.",
    "linear": "Scikit-learn's ridge or logistic regression, fitted on the processor without device memory.",
}

ARCHITECTURE: dict[str, str] = {
    "hidden": "Widths of the fully connected hidden layers, from the input to the output.",
    "channels": "Channels of each block; a block halves height and width.",
    "kernel": "Height and width of each convolution's kernel.",
    "depth": "Number of convolutions in each block.",
    "activation": "The activation function after each layer.",
    "dropout": "The share of hidden values that training sets to zero at random.",
    "batch_norm": "Whether hidden layers normalize their values over the batch.",
    "layers": "The layers, each an object with a `type`.",
    "members": "Number of members of the ensemble.",
    "iterations": "Boosting: the most trees, for each class if there are more than two. Null: 500 if there are "
    "enough validation rows to stop early, else 100. Linear: the most steps of the solver.",
    "patience": "Boosting stops after this many iterations without a lower validation loss.",
    "learning_rate": "The factor by which each tree's values are multiplied.",
    "leaves": "The most leaves of a tree.",
    "max_depth": "The most splits from the root of a tree to a leaf. Null: no limit.",
    "leaf_rows": "The fewest rows of a leaf.",
    "l2": "Strength of the penalty on the squares of the leaves' values (boosting) or of the weights (linear).",
    "width": "Width of the blocks.",
    "blocks": "Number of blocks.",
    "heads": "Attention heads; must divide `embedding_width`.",
    "crosses": "Number of layers of products; each raises the degree of the products by one.",
    "number_embedding": "How a number becomes a vector: `piecewise` is linear between the quantiles of the training "
    "rows, `periodic` has sines and cosines of learned frequencies, `linear` is a product; `none` uses the number as "
    "it is.",
    "embedding_width": "Length of the vector of each number and each category.",
    "bins": "Number of pieces of a piecewise embedding.",
    "frequencies": "Number of frequencies of a periodic embedding.",
    "frequency_scale": "Standard deviation of the first frequencies of a periodic embedding.",
    "text_encoder": "How the tokens of a text become one vector: `pooling` is the sum of their learned vectors, "
    "`convolution` the largest values of a convolution over them, `transformer` their mean after blocks of "
    "attention.",
    "text_width": "Length of the vector of each token and of each text.",
    "text_dropout": "The share of the numbers of a text's vector that each training step leaves out.",
    "text_kernel": "How many neighbouring tokens the convolution sees together.",
    "text_heads": "Attention heads of the text's transformer; must divide `text_width`.",
    "text_blocks": "Blocks of attention of the text's transformer.",
    "from": "The name of the registered network (`tensile.network_list`).",
    "train": "What learns: the `head` behind the network, the head and `lora`, or `all` of it.",
    "lora": "The rank `r`, the factor `alpha` (additions are multiplied by `alpha` / `r`), the `dropout` before "
    "them, and the `targets`, names of layers. Null: `r` 8, `alpha` 16, no dropout, query and value layers.",
    "pooling": "Which vector of the network stands for a text: the `mean` of its tokens, the `first` or the `last`. "
    "Null: `last` for gpt2, else `mean`.",
    "digest": "The digest of the network. Null: that of the network when the training is enqueued; the request is "
    "refused if the network has another one.",
    "image_encoder": "How an image becomes one vector: `convolution` is the mean over a few convolutions, `resnet` "
    "over three stages of residual blocks, `vit` over patches of the image after blocks of attention.",
    "image_width": "Length of the vector of each image. The first stage of `resnet` has a quarter as many channels.",
    "image_blocks": "Residual blocks of each stage, blocks of attention, or convolutions after the first one.",
    "image_patch": "Height and width of the patches of `vit`.",
    "image_heads": "Attention heads of `vit`; must divide `image_width`.",
    "stages": "Residual blocks of each stage. Each stage has half the height and width and twice the channels of the "
    "one before it.",
    "resnet.width": "Channels of the first stage.",
    "resnet.dropout": "The share of the last vector that training sets to zero at random.",
    "patch": "Height and width of the patches into which the image is divided.",
    "vit.width": "Length of the vector of each patch.",
    "vit.heads": "Attention heads; must divide `width`.",
    "name": "The name of the network in timm, without a tag, such as `resnet18` or `vit_tiny_patch16_224`.",
    "drop_rate": "The share of the last vector that training sets to zero at random. Null: that of timm, mostly 0.",
    "drop_path_rate": "The share of rows for which training leaves out the last block at random; for earlier blocks "
    "the share is smaller. Not every network has this. Null: that of timm, mostly 0.",
    "library_version": "The version of timm. Null: the installed one; a controller with another one refuses the "
    "training.",
    "images": "Channels, height and width of each column of images. Null: they follow from the columns; any other "
    "numbers are refused.",
    "vocabularies": "Numbers of different tokens of the columns of texts. Null: counted from the columns; any other "
    "numbers are refused.",
    "lengths": "Numbers of tokens of the columns of texts. Null: chosen with the columns; any other numbers are "
    "refused.",
    "numbers": "How many values at the start of a row are embedded as numbers. Null: counted from the columns; any "
    "other count is refused.",
    "categories": "Numbers of categories of the values at the end of a row. Null: counted from the columns; any "
    "other counts are refused.",
    "autoencoder.hidden": "Widths of the layers before the code; those after it have the same in reverse.",
    "code": "Width of the narrow layer in the middle. Null: 1 for rows of up to 8 numbers, 2 for rows of up "
    "to 64, and then one for each 32 numbers, 16 at most.",
    "noise": "The share of the inputs that are hidden in each training step, so that a value is told from the other "
    "columns.",
    **dict.fromkeys(
        ("widths", "divisors"),
        "Follows from the columns. Null: counted from them; any other numbers are refused.",
    ),
    "two_towers.width": "Length of the vector of a query and of an item.",
    "temperature": "What the cosine of the two vectors is divided by in the loss: a low one tells near items apart. "
    "Null: learned, from 0.07 on.",
    "item_ranges": "Where the numbers of the item are in a row. Null: follows from the columns of the target; any "
    "other numbers are refused.",
    "dlinear.kernel": "Steps of the moving average.",
    "tcn.channels": "Channels of each convolution; each doubles the dilation of the one before.",
    "tcn.kernel": "Steps that a convolution sees, at its dilation.",
    "units": "Width of the LSTM's state.",
    "window_lstm.layers": "Number of stacked layers.",
    **dict.fromkeys(
        ("window", "horizon", "window_channels", "targets", "known", "season"),
        "Follows from `forecast`. Null: taken from there; any other number is refused.",
    ),
    "input_shape": "The shape into which a row's features are folded, as [features], [steps, features] or "
    "[channels, height, width]. Null: the shape of the columns.",
}

LAYERS: dict[str, str] = {
    "linear": "A fully connected layer. Without `out` it has as many outputs as the task needs.",
    "conv2d": "A convolution over an image.",
    "batch_norm1d": "Normalizes the features of a vector over the batch.",
    "batch_norm2d": "Normalizes the channels of an image over the batch.",
    "layer_norm": "Normalizes the values of each row.",
    "relu": "max(0, x).",
    "gelu": "x times the normal distribution function of x.",
    "tanh": "The hyperbolic tangent.",
    "sigmoid": "1 / (1 + exp(-x)).",
    "silu": "x times its sigmoid.",
    "dropout": "Sets values to zero at random while training.",
    "max_pool2d": "The largest value of each window of an image.",
    "avg_pool2d": "The mean of each window of an image.",
    "adaptive_avg_pool2d": "The means of windows that are chosen so that the result is an image of this size.",
    "flatten": "Folds a row's values into one vector.",
    "reshape": "Folds a row's values into another shape.",
    "lstm": "A long short-term memory over a sequence.",
    "gru": "A gated recurrent unit over a sequence.",
    "transformer_encoder": "Self-attention over a sequence, with learned positions.",
    "residual": "Adds the output of its layers to its input; both must have the same shape.",
}

LAYER: dict[str, str] = {
    "out": "Outputs, or channels, of the layer.",
    "linear.out": "Outputs of the layer. Null: as many as the task needs.",
    "bias": "Whether a learned constant is added.",
    "kernel": "Height and width of the window.",
    "stride": "Distance between neighbouring windows. Null: the size of the window.",
    "conv2d.stride": "Distance between neighbouring windows.",
    "padding": "Zeros on each side of the image.",
    "conv2d.padding": "Zeros on each side of the image. Null: half of the kernel, which keeps height and width at "
    "stride 1.",
    "groups": "Groups of channels that are convolved separately; must divide the numbers of input and output "
    "channels.",
    "p": "The share of values set to zero.",
    "size": "Height and width of the result.",
    "shape": "The new shape of a row; one number may be -1, which is computed from the others.",
    "hidden": "Width of the hidden state.",
    "layers": "Number of stacked layers.",
    "residual.layers": "The inner layers.",
    "bidirectional": "Whether the sequence is read in both directions, which doubles the width of the result.",
    "dropout": "The share of values set to zero between stacked layers.",
    "output": "The layer's output: the last step, the mean over all steps, or the whole sequence.",
    "d_model": "Width within the encoder. Null: the width of the input.",
    "heads": "Attention heads; must divide `d_model`.",
    "feedforward": "Width of each layer's feed-forward part. Null: four times `d_model`.",
    "positions": "Whether a learned encoding of the position in the sequence is added to each step.",
}

PREPROCESS: dict[str, str] = {
    "standardize": "Whether numbers are centred and scaled by mean and standard deviation of the training rows.",
    "scale": "A function that is applied before standardizing: `log` is sign(x) log(1 + abs(x)), `power` that of "
    "Yeo and Johnson with the exponent that makes the training rows most normal, `quantile` the normal score of the "
    "value's rank among the training rows.",
    "encode": "How a text becomes numbers: `onehot` has one column per category; `ordinal` has the place in the "
    "order of the texts, or in the order of a list, as in "
    '`{"encode": {"size": ["S", "M", "L"]}}`; `target` has the mean of the target in the rows of that text, for '
    "training rows out of fold; `hash` has one of `categories` columns, by a hash of the text; `tokens` has the "
    "pieces of words that the text consists of; only networks for tables read them, and `auto` then chooses one. "
    "`image` is the only "
    "encoding of a column of bytea, which is chosen by itself. Null: the network "
    "embeds the text if it is one for tables, else `onehot`.",
    "categories": "How many of the most frequent values of a text column, or labels of an array, become a category "
    "of their own; the other values share one category. With `hash`: the number of columns. With `target` without a "
    "value for the column: all, and for a text that the network embeds: 1,000.",
    "vocabulary": "How many different tokens a column of texts has at most. They are learned from the training rows "
    "by byte pair encoding of lower-case texts.",
    "length": "How many tokens of a text are read; the others are left out. Null: the power of two that holds 95 % "
    "of the training rows' texts, at most 128.",
    "size": "Height and width of the images of a column of bytea. Null: the median height and width of the images, "
    "reduced to sides of at most 128 pixels.",
    "channels": "Whether images are read in `grey` or in `rgb`. Null: in grey if all images of the column are grey.",
    "resize": "How an image is brought to its size: `crop` keeps its middle, `pad` keeps all of it between black "
    "borders, `stretch` changes its proportions.",
    "on_error": "What an image that cannot be read leads to: `stop` ends the training, or the prediction, with an "
    "error that names the row; `skip` leaves the row out of the training, and gives NULL for it in a prediction.",
    "missing": "What replaces NULL and numbers that are not finite: the column's mean, its median, its most frequent "
    "value, zero, a number, the mean with an additional feature that marks the replaced values, or an error. A "
    "missing text is a category of its own, unless it is replaced by the most frequent text or by "
    '`{"constant": "a text"}`; missing labels are always a category of their own. '
    "A missing image becomes the mean colour of the training rows.",
    "paths": "Which values of a json or jsonb column become columns: an object of paths, each `number`, `boolean`, "
    "`text`, `time` or `labels`. Dots separate the keys of a path, digits count in a list from 0. Other options call "
    "the new column `column.path`.",
}

SPLIT: dict[str, str] = {
    "test_size": "The share of rows that are held out to compute the metric that decides about deployment.",
    "valid_size": "The share of rows that are evaluated after each epoch, for early stopping.",
    "seed": "The seed of the random split. A row keeps its part as long as its key, or without a key its values, "
    "stay the same.",
    "last": "The share of rows that are held out from the end of the order of `by`, in place of a random "
    "`test_size`.",
    "by": "With `last`: the date, timestamp or number that orders the rows. It is not a feature unless `features` "
    "names it. Null: the only date or timestamp of the table.",
    "column": "A column that defines the split: a boolean that is true for the rows to hold out, or a text that is "
    "`train`, `valid` or `test`. It is not a feature.",
    "group": "A column that keeps rows together: all rows with the same value are in one part, such as the visits "
    "of one patient. It is "
    "not a feature unless `features` names it.",
    "stratify": "A column, such as the target, whose values have the same shares in each part.",
    "key": "The columns that identify a row, for a relation without a primary key such as a view or a query: a row "
    "keeps its part as long as their values stay the same, and rows with equal values are in one part. They are not "
    "features unless `features` names them. Null: the primary key; of a view, that of its only table.",
    "valid": "A table whose rows validate, in place of a share of the rows. It has the features and the target with "
    "the same types.",
    "test": "A table whose rows test, in place of a share of the rows. It has the features and the target with the "
    "same types.",
}

EARLY_STOP: dict[str, str] = {
    "on": "Whether training may end early. False excludes the other keys, and training runs all epochs.",
    "patience": "The number of epochs without an improvement after which training ends; the best epoch's weights are "
    "published. Null: chosen by the number of epochs.",
    "min_delta": "The least gain that counts as an improvement.",
    "metric": "The monitored value on the validation rows: `loss`, or a metric of the task.",
}

FORECAST: dict[str, str] = {
    "horizon": "How many steps ahead to forecast, with a value for each.",
    "time": "The column that orders the rows of a series: a date, a timestamp, or an integer that counts steps. "
    "Null: the only date or timestamp.",
    "series": "The columns whose values tell series apart. Null: all rows are one series.",
    "step": "The time between two values: a number and a unit (`15 minutes`, `day`, `2 weeks`, `month`), or a number "
    "for an integer time. Null: the most frequent distance of two times.",
    "window": "How many steps before an origin the model sees. Null: two horizons and two seasons, at most half of "
    "the training steps.",
    "season": "After how many steps values repeat; 1: there is no season. Null: the lag at which changes repeat "
    "most, of those that the step suggests (24 and 168 hours, 7 days, 52 weeks, 12 months, 4 quarters).",
    "known": "Columns whose values are known in advance, such as a planned promotion.",
    "observed": "Columns of which only past values are known.",
    "static": "Columns with a single value for each series, such as a store's region.",
    "calendar": "Whether the hour, the weekday and the time of the year are known columns too, where the training "
    "steps cover the day, the week or the year twice.",
    "gaps": "What replaces the value of a step that has none: the value before it, or zero. `error` refuses the "
    "rows instead. Such a "
    "step counts neither in the loss nor in a metric.",
    "duplicates": "What several rows of one step become: their mean or their sum. `error` refuses them instead.",
    "interval": "The share of values that shall lie between `lower` and `upper`.",
    "time_zone": "For timestamps with time zone: the zone whose days, weeks, months and hours count. Null: UTC.",
}

METRICS: dict[str, str] = {
    "reconstruction_error": "The mean squared error of the reconstructed columns of a row, in standard deviations.",
    "average_precision": "The mean of the precision at each anomaly, in the order of the scores: needs labels.",
    "mrr": "The mean of 1 / rank, where rank is that of a row's item among the items of all rows, by the similarity "
    "with the row's query. Higher is better.",
    "recall_at_1": "The share of rows whose item is ranked first. Higher is better.",
    "recall_at_10": "The share of rows whose item is among the first ten. Higher is better.",
    "mase": "The mean absolute error by that of the seasonal naive forecast of one step in the training steps of the "
    "same series (Hyndman and Koehler 2006): below 1 is better than that.",
    "smape": "The mean of 2 |y - f| / (|y| + |f|), where y is the value and f its forecast.",
    "pinball": "The mean pinball loss of both ends of the interval and of the median.",
    "accuracy": "The share of rows whose label is right. Higher is better.",
    "balanced_accuracy": "The share of rows whose label is right, averaged over the classes. Higher is better.",
    "precision_macro": "The share of the rows predicted as a class that are of the class, averaged over the classes. "
    "Higher is better.",
    "recall_macro": "The share of the rows of a class that are predicted as the class, averaged over the classes, "
    "including those that are predicted and do not occur. Higher is better.",
    "f1_macro": "The F1 score, averaged over the classes or labels. Higher is better.",
    "log_loss": "The mean negative logarithm of the probability given to the right label, for multilabel to what is "
    "right about each label. Lower is better.",
    "roc_auc": "The area under the receiver operating characteristic; for more than two classes, the mean of the "
    "areas of each class or label against the rest. Higher is better.",
    "brier": "The Brier score: the mean squared distance of the probabilities from 1 for the right label and 0 for "
    "the others; of two labels, only one is counted. Lower is better.",
    "calibration_error": "The expected calibration error: the mean distance between the probability of the predicted "
    "label and the share of right predictions, in 15 bins of equal width, weighted by rows. Lower is better.",
    "r2": "The coefficient of determination: the share of the target's variance that is explained. Higher is better.",
    "rmse": "The root of the mean squared error, in the target's unit. Lower is better.",
    "mae": "The mean absolute error, in the target's unit. Lower is better.",
    "mape": "The mean absolute error relative to the target, as a share: 0.1 is 10 %. Not defined if a target is "
    "zero. Lower is better.",
    "median_absolute_error": "The median absolute error, in the target's unit. Lower is better.",
    "f1_micro": "The F1 score of all labels of all rows together. A label is predicted from a probability of 0.5 on. "
    "Higher is better.",
    "precision_micro": "The share of the predicted labels that the rows have. Higher is better.",
    "recall_micro": "The share of the rows' labels that are predicted. Higher is better.",
    "subset_accuracy": "The share of rows whose predicted set of labels is the row's own. Higher is better.",
    "hamming_loss": "The share of wrong decisions about a label of a row. Lower is better.",
}

DEPLOY: dict[str, str] = {
    "if_better": "The new version is deployed if its metric on the held-out rows is better than that of the deployed "
    "version on the same rows.",
    "always": "The new version is deployed.",
    "never": "The new version is kept, and predicts only if its number is given.",
}
