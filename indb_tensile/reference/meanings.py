"""What each option and each setting means, in a sentence or two: the part of the reference that no other table has.

Keys are the names in the tables that check the options. A test requires a sentence for every name, and no others.
Types, ranges and defaults do not belong here: the page takes them from those tables.
"""

HYPERPARAMS: dict[str, str] = {
    "epochs": "How often training passes over the training rows, at most; early stopping may end it sooner. "
    "Null: chosen by the number of training rows. Where it is given, early stopping has to be asked for.",
    "batch_size": "Rows of one training step. The last step of an epoch takes the rows that are left. Null: chosen "
    "by the number of training rows.",
    "micro_batch_size": "Rows that a step computes at once; the gradients of the parts add up to that of the batch. "
    "Null: the whole batch. Smaller parts take less memory and more time.",
    "precision": "How products and convolutions are computed; parameters, gradients and optimizer stay float32. On a "
    "GPU, torch is what PyTorch does by itself: convolutions in TensorFloat-32 (19 bits), products in float32; "
    "float32 and tf32 are one of the two for both. On processors these three are the same, float32. With bfloat16 "
    "whatever tolerates it is computed in 16 bits.",
    "optimizer": "How parameters follow their gradients: stochastic gradient descent, Adam, Adam with decoupled "
    "weight decay, Adagrad, or RMSprop; each as in `torch.optim`.",
    "learning_rate": "The rate after the warm-up. Null: 0.05 for sgd, 0.002 for adam and adamw, 0.01 for "
    "adagrad, 0.001 for rmsprop.",
    "schedule": "How the rate falls: not at all, as half a cosine down to zero, or by steps at `decay_at`.",
    "warmup": "The share of all steps in which the rate rises linearly from zero.",
    "decay": "With the schedule step: the factor by which the rate falls at each of `decay_at`.",
    "decay_at": "With the schedule step: the shares of all steps at which the rate falls.",
    "momentum": "With sgd and rmsprop: the momentum. Null: 0.9 for sgd, 0 for rmsprop.",
    "nesterov": "With sgd: Nesterov's momentum; needs a momentum above 0.",
    "betas": "With adam and adamw: the decay of the running means of the gradient and of its square.",
    "alpha": "With rmsprop: the decay of the running mean of the gradient's square.",
    "centered": "With rmsprop: divide by the running variance of the gradient, not by the mean of its square.",
    "eps": "Not with sgd: the number added to the denominator, for numerical stability. Null: 1e-10 for adagrad, "
    "1e-8 for the others.",
    "weight_decay": "How strongly parameters are drawn to zero. Null: 0.01 for adamw, 0 for the others.",
    "clip_norm": "The largest norm of all gradients together; larger ones are scaled down. Null: no bound.",
    "average_decay": "Keep a moving average of the weights, and validate and publish it instead of them: after the "
    "first step it is the weights, after each later one `average_decay` times itself and the rest the weights. "
    "Training goes on with the weights themselves. Buffers, such as the running statistics of batch normalisation, "
    "are published as they are. As `torch.optim.swa_utils.AveragedModel` with `get_ema_multi_avg_fn`. It takes as "
    "much memory again as the weights. Null: no average; 0.999 suits trainings of thousands of steps.",
    "seed": "The seed of the initial weights, of the order of the rows and of dropout.",
}

ARCHITECTURES: dict[str, str] = {
    "auto": "Chosen by the columns: `cnn` for one array column with the shape of an image, else `mlp`.",
    "mlp": "Fully connected layers.",
    "cnn": "Blocks of convolutions and pooling, then fully connected layers.",
    "layers": "Your own layers, one after another; see the list below.",
}

ARCHITECTURE: dict[str, str] = {
    "hidden": "Widths of the fully connected hidden layers, from the input to the output.",
    "channels": "Channels of each block; a block halves height and width.",
    "kernel": "Height and width of each convolution's kernel.",
    "depth": "Convolutions of each block.",
    "activation": "The function after each layer.",
    "dropout": "The share of hidden values that training sets to zero at random.",
    "batch_norm": "Whether hidden layers normalize their values over the batch.",
    "layers": "The layers, each an object with a `type`.",
    "input_shape": "The shape that a row's features are folded into, as [features], [steps, features] or "
    "[channels, height, width]. Null: that of the columns.",
}

LAYERS: dict[str, str] = {
    "linear": "A fully connected layer. One without `out` has as many outputs as the task needs.",
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
    "adaptive_avg_pool2d": "Means over as many windows as give an image of this size.",
    "flatten": "A row's values as one vector.",
    "reshape": "A row's values in another shape.",
    "lstm": "A long short-term memory over a sequence.",
    "gru": "A gated recurrent unit over a sequence.",
    "transformer_encoder": "Self-attention over a sequence, with learned positions.",
    "residual": "Adds what its layers give to its input; both must have the same shape.",
}

LAYER: dict[str, str] = {
    "out": "Outputs, or channels, of the layer.",
    "linear.out": "Outputs of the layer. Null: as many as the task needs.",
    "bias": "Whether a learned constant is added.",
    "kernel": "Height and width of the window.",
    "stride": "How far the window moves. Null: by its own size.",
    "conv2d.stride": "How far the window moves.",
    "padding": "Zeros around the image.",
    "conv2d.padding": "Zeros around the image. Null: half of the kernel, which keeps height and width at stride 1.",
    "groups": "Groups of channels that do not see each other; must divide the channels before and after.",
    "p": "The share of values set to zero.",
    "size": "Height and width of the result.",
    "shape": "The new shape of a row; one number may be -1, which is worked out.",
    "hidden": "Width of the state.",
    "layers": "How many are stacked.",
    "residual.layers": "The layers inside.",
    "bidirectional": "Whether the sequence is read in both directions, which doubles the width of the result.",
    "dropout": "The share of values set to zero between stacked layers.",
    "output": "What is given on: the last step, the mean over all steps, or the whole sequence.",
    "d_model": "Width within the encoder. Null: that of the input.",
    "heads": "Attention heads; must divide `d_model`.",
    "feedforward": "Width of each layer's feed-forward part. Null: four times `d_model`.",
    "positions": "Whether the place in the sequence is added to each step.",
}

PREPROCESS: dict[str, str] = {
    "standardize": "Whether numbers are centred and scaled by the training rows.",
    "categories": "How many values of a text column become a category of their own, the most frequent ones; the rest "
    "share one.",
    "missing": "What becomes of NULL and of numbers that are not finite: their mean, their median, zero, the mean "
    "with a further feature that says so, or an error. A missing text is a category of its own.",
}

SPLIT: dict[str, str] = {
    "test_size": "The share of rows held out for the metric that decides about deployment.",
    "valid_size": "The share of rows that is evaluated after each epoch, for early stopping.",
    "seed": "The seed of the choice. A row keeps its part as long as its key, or without a key its values, stay.",
    "last": "The share of rows held out, taken from the end of the order of `by` in place of a random `test_size`.",
    "by": "With `last`: the date, timestamp or number that orders the rows. It is no feature unless `features` names "
    "it. Null: the only date or timestamp of the table.",
    "column": "A column that says which rows are held out: a boolean that is true for them, or a text that is "
    "`train`, `valid` or `test`. It is no feature.",
}

EARLY_STOP: dict[str, str] = {
    "on": "Whether training may end early. False stands alone, and trains all epochs.",
    "patience": "Epochs without an improvement after which training ends; the best epoch's weights are published. "
    "Null: chosen by the number of epochs.",
    "min_delta": "The least gain that counts as an improvement.",
    "metric": "What is watched on the validation rows: `loss`, or a metric of the task.",
}

METRICS: dict[str, str] = {
    "accuracy": "The share of rows whose label is right. Higher is better.",
    "balanced_accuracy": "The mean over the classes of the share of its rows that are right. Higher is better.",
    "f1_macro": "The mean over the classes of the F1 score. Higher is better.",
    "log_loss": "The mean negative logarithm of the probability given to the right label. Lower is better.",
    "roc_auc": "The area under the receiver operating characteristic; for more than two classes the mean over the "
    "classes of that of each against the rest. Higher is better.",
    "r2": "The share of the variance that is explained. Higher is better.",
    "rmse": "The root of the mean squared error, in the target's unit. Lower is better.",
    "mae": "The mean absolute error, in the target's unit. Lower is better.",
}

DEPLOY: dict[str, str] = {
    "if_better": "The new version predicts from then on if its metric on the held-out rows beats that of the "
    "deployed version on the same rows.",
    "always": "The new version predicts from then on.",
    "never": "The new version is kept, and predicts only where its number is given.",
}

SETTINGS: dict[str, str] = {
    "dsn": "The database, as a libpq connection string. Empty: libpq's own variables and defaults.",
    "reader_dsn": "How trainers log in to read tables. Empty: as `dsn`, in the role tensile_reader, without its "
    "password.",
    "read_limit_bytes": "The most memory for the columns of one table. 0: a quarter of the machine's or container's.",
    "device": "What trains: `auto` takes a GPU where the driver and torch have CUDA, else the processor; `cpu` is "
    "the processor; `cuda` or `cuda:1` is that GPU and no other; `emulated` is an imitation of a GPU, for tests.",
    "capacity_bytes": "Memory of the device. Unset, a GPU has its own, and the processor half of the machine's "
    "or its container's.",
    "budget_bytes": "The part of the device's memory that all jobs may use together; all of it where only the "
    "capacity is given. May change while the controller runs (SIGHUP).",
    "region_bytes": "The unit in which memory goes from job to job; a multiple of a page.",
    "share_memory": "Off, each trainer has memory of its own, as much as it is granted; for debugging.",
    "memory_directory": "Where the processor's or the emulated device's memory is made, such as /dev/shm. Empty: "
    "anonymous memory.",
    "emulate": "The GPU that the emulated device stands for.",
    "link_out_bytes_per_s": "The rate of copies from the device to the host. 0: that of the emulated GPU, slowed "
    "down as this machine is slower. For the emulated device alone: others are measured.",
    "link_in_bytes_per_s": "The rate of copies from the host to the device. 0: as above.",
    "host_pool_bytes": "The most host memory for what is away from the device; on `cpu`, the most disk. Unset on a "
    "GPU: half of the memory that is free beside the trainers.",
    "swap_directory": "On `cpu`, where the file is made that takes what is swapped out; it must be on a disk. Empty: "
    "`swap` in `state_dir`.",
    "lease_s": "How long a controller may be silent before others take its jobs over; at least three beats.",
    "beat_s": "How often a controller shows that it is alive, and hears of cancellations.",
    "poll_s": "How often a controller looks at the queue without being notified.",
    "spare_trainers": "Trainer processes that are kept started, so that no job waits for one.",
    "max_jobs": "The most jobs that a controller runs at once.",
    "entering_jobs": "The most jobs of one owner that are read, captured and planned at once. 0: as many as the "
    "machine has cores, at least 2.",
    "policy": "How memory is planned: `tensile+` is ours, `tensile` the published one; `liveness` and `vanilla` plan "
    "nothing, for comparison.",
    "drift_threshold": "How far measured latencies may move before memory is planned anew.",
    "checkpoint_s": "The least time between two checkpoints. They never take more than a tenth of the training time.",
    "checkpoint_store": "Where checkpoints go: `local` files below `state_dir`, the `catalog`, or `auto`: files, and "
    "the catalog while a controller of another host is alive or files cannot be written.",
    "checkpoint_catalog_s": "With `auto`: the least time between two checkpoints in the catalog.",
    "stop_grace_s": "How long a process that is asked to end has until it is killed.",
    "answer_s": "How long a trainer may be silent before it is killed and its job goes on from its last checkpoint.",
    "start_patience_s": "How long a controller that starts waits for a database that does not answer.",
    "interrupted_s": "How much time interruptions that are not its fault may cost a job before it fails. 0: no "
    "limit.",
    "service_directory": "Where the service that predicts puts its socket. Empty: no service.",
    "state_dir": "Where checkpoints and logs are kept.",
    "strict": "Whether touching memory that is away ends the process; for debugging the emulated device.",
    "cuda_graphs": "Whether a GPU runs an iteration as one recorded graph where its plan allows.",
    "mps": "Whether NVIDIA's Multi-Process Service must serve the GPU, so that kernels of several jobs run beside "
    "each other. `tensile up --mps` starts its daemon, and `tensile down` ends it.",
    "survey_s": "The device's time spent measuring operators where it is met for the first time. 0: none.",
    "log_level": "The least severe records that are logged.",
    "log_bytes": "The size at which the logs of `tensile up` are rotated.",
    "log_files": "How many older files of each log are kept.",
    "torch_threads": "Threads of one job's arithmetic, which a job keeps from its first start on. 0: half of the "
    "processors on `cpu`, one elsewhere.",
}
