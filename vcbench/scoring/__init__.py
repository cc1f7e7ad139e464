"""Every metric of a run, from its records alone: values by answer, intervals, and differences to full KV."""
