"""Users' files and Hugging Face data sets → the records that training reads. No tokenisers, no tensors."""
