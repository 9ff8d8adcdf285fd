/* The side of llm.c of llmc.lua: one request a line, one answer a line. It is compiled with
   llm.c's folder among the include paths; the model, its training step and its forward pass are
   llm.c's. */
#define TESTING
#include "train_gpt2.c"

static GPT2 model;
static int *inputs, *targets, rows, context;

/* The bytes of a tensor of a safetensors file that lies in memory. */
static const void *find(const char *file, const char *name) {
  uint64_t header;
  memcpy(&header, file, 8);
  char key[128];
  snprintf(key, sizeof key, "\"%s\":", name);
  const char *at = strstr(file + 8, key);
  if (at) at = strstr(at, "\"data_offsets\":[");
  if (!at) {
    fprintf(stderr, "%s is missing\n", name);
    exit(1);
  }
  return file + 8 + header + strtoull(at + strlen("\"data_offsets\":["), NULL, 10);
}

/* Copies a parameter; matrices of the layers are (inputs, outputs) in the file, (outputs,
   inputs) in llm.c. */
static void copy(const char *file, const char *name, float *to, int outputs, int inputs) {
  const float *from = find(file, name);
  for (int o = 0; o < outputs; o++)
    for (int i = 0; i < inputs; i++) to[(size_t)o * inputs + i] = from[(size_t)i * outputs + o];
}

static void read_weights(const char *file) {
  ParameterTensors p = model.params;
  int C = model.config.channels;
  copy(file, "weights.transformer.wte.weight", p.wte, 1, model.config.vocab_size * C);
  copy(file, "weights.transformer.wpe.weight", p.wpe, 1, model.config.max_seq_len * C);
  copy(file, "weights.transformer.ln_f.weight", p.lnfw, C, 1);
  copy(file, "weights.transformer.ln_f.bias", p.lnfb, C, 1);
  for (size_t l = 0; l < (size_t)model.config.num_layers; l++) {
    struct {
      const char *name;
      float *to;
      int outputs, inputs;
    } parts[] = {
        {"ln_1.weight", p.ln1w + l * C, C, 1},
        {"ln_1.bias", p.ln1b + l * C, C, 1},
        {"attn.c_attn.weight", p.qkvw + l * 3 * C * C, 3 * C, C},
        {"attn.c_attn.bias", p.qkvb + l * 3 * C, 3 * C, 1},
        {"attn.c_proj.weight", p.attprojw + l * C * C, C, C},
        {"attn.c_proj.bias", p.attprojb + l * C, C, 1},
        {"ln_2.weight", p.ln2w + l * C, C, 1},
        {"ln_2.bias", p.ln2b + l * C, C, 1},
        {"mlp.c_fc.weight", p.fcw + l * 4 * C * C, 4 * C, C},
        {"mlp.c_fc.bias", p.fcb + l * 4 * C, 4 * C, 1},
        {"mlp.c_proj.weight", p.fcprojw + l * 4 * C * C, C, 4 * C},
        {"mlp.c_proj.bias", p.fcprojb + l * C, C, 1},
    };
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
      char name[128];
      snprintf(name, sizeof name, "weights.transformer.h.%zu.%s", l, parts[i].name);
      copy(file, name, parts[i].to, parts[i].outputs, parts[i].inputs);
    }
  }
}

/* Ids count from 1 in the file. */
static int *ids(const char *file, const char *name) {
  const int64_t *from = find(file, name);
  int *to = mallocCheck((size_t)rows * context * sizeof *to);
  for (int i = 0; i < rows * context; i++) to[i] = (int)from[i] - 1;
  return to;
}

static void begin(const char *path, GPT2Config config) {
  FILE *f = fopenCheck(path, "rb");
  fseek(f, 0, SEEK_END);
  size_t size = ftell(f);
  rewind(f);
  char *file = mallocCheck(size + 1);
  freadCheck(file, 1, size, f);
  fcloseCheck(f);
  model = (GPT2){.config = config, .mean_loss = -1.0f};
  fill_in_parameter_sizes(model.param_sizes, config);
  for (int i = 0; i < NUM_PARAMETER_TENSORS; i++) model.num_parameters += model.param_sizes[i];
  model.params_memory = malloc_and_point_parameters(&model.params, model.param_sizes);
  memset(model.params_memory, 0, model.num_parameters * sizeof(float));
  read_weights(file);
  inputs = ids(file, "x");
  targets = ids(file, "y");
  free(file);
}

static double now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec + 1e-9 * t.tv_nsec;
}

int main(void) {
  char line[4096], path[4000];
  GPT2Config c = {0};
  FILE *out = fdopen(dup(1), "w"); /* llm.c prints sizes to the standard output */
  dup2(2, 1);
  for (int step = 0; fgets(line, sizeof line, stdin) && strcmp(line, "quit\n");) {
    double from = now();
    if (sscanf(line, "begin %3999s %d %d %d %d %d %d", path, &c.num_layers, &c.channels,
               &c.num_heads, &context, &rows, &c.vocab_size) == 7) {
      c.max_seq_len = context;
      c.padded_vocab_size = (c.vocab_size + 127) / 128 * 128;
      begin(path, c);
    } else if (!strcmp(line, "step\n")) {
      gpt2_forward(&model, inputs, targets, rows, context);
      gpt2_zero_grad(&model);
      gpt2_backward(&model);
      gpt2_update(&model, 3e-4f, 0.9f, 0.999f, 1e-8f, 0.1f, ++step);
    } else if (!strcmp(line, "forward\n")) {
      gpt2_forward(&model, inputs, NULL, rows, context);
    } else {
      exit(1);
    }
    fprintf(out, "seconds=%.9g loss=%.9g\n", now() - from, model.mean_loss);
    fflush(out);
  }
  return 0;
}
