/* Adapters: low-rank corrections of a model's weights (LoRA). */
#include "engine/engine.h"
#include "model/lora.h"

km_status km_adapters_open(km_model *m, const km_adapter *adapters, size_t n, km_error *err) {
    if (n > 1)
        return km_error_set(err, KM_ERR_UNSUPPORTED, "%zu adapters: one at a time is possible", n);
    if (!adapters[0].path) return km_error_set(err, KM_ERR_NULL, "an adapter without a path");
    km_net *net = m->ground->net;
    km_status s = km_lora_load(net, adapters[0].path, err);
    if (s == KM_OK && !net->borrowed) s = km_lora_merge(net, err);
    return s;
}
