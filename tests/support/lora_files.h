/* Adapters of random numbers for a model's layers, written as PEFT and llama.cpp's converter do. */
#ifndef KM_TESTS_SUPPORT_LORA_FILES_H
#define KM_TESTS_SUPPORT_LORA_FILES_H
#include "model/config.h"

typedef struct lora_form {
    int rank;
    double alpha;
    uint64_t seed;
    const char *layers; /* ends of names with spaces between: "q_proj mlp.down_proj"; NULL: all */
    double size;        /* of the numbers; 0: 0.1 */
} lora_form;

/* A folder (which is made) with adapter_config.json and adapter_model.safetensors. */
void write_lora_folder(const char *folder, const km_config *c, const lora_form *f);
/* The same adapter as a GGUF file. */
void write_lora_gguf(const char *path, const km_config *c, const lora_form *f);
/* Writes a text to a file, for those that are to be wrong. */
void write_text(const char *folder, const char *file, const char *text);

#endif
